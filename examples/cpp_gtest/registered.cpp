#include <equigrad/registered_model.hpp>
#include <perceptron.hpp>

EQUIGRAD_MODEL([] { return std::make_shared<Perceptron>(); }, perceptron_loss)
