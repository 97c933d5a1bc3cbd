// HostDevice: a device of torch whose memory is the host's and whose operators are the CPU's, under
// a type of its own ("host"): torch refuses an operator that meets tensors of two devices.
//
// What runs on it is what would run on a GPU, but for kernels, and a path that takes the CPU for
// granted fails. To the engine it is no CUDA device: its loops read the host's memory.
//
// Invariants: an operator has the bits that it has on the CPU. One device, one stream, nothing
// asynchronous. take_host_device() is called before autograd has a thread.
// Errors: torch's.
// Depends on: ATen, torch/library.h. Method: torch's own tests of devices out of its tree.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "conformance/ranks/rank_context.hpp"

namespace equigrad::conformance {

inline constexpr c10::DeviceType kHostDevice = c10::kPrivateUse1;

struct HostDeviceGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kHostDevice; }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::Device getDevice() const override { return {kHostDevice, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
};

struct HostDeviceHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  // Which its operators, the CPU's, do not draw from.
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static const at::Generator own = at::detail::createCPUGenerator();
    return own;
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto grown = storage.allocator()->allocate(bytes);
    std::memcpy(grown.get(), storage.data(), std::min(bytes, storage.nbytes()));
    storage.set_data_ptr_noswap(std::move(grown));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

struct HostDeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    auto* const data = c10::alloc_cpu(bytes);
    return {data, data, &c10::free_cpu, {kHostDevice, 0}};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &c10::free_cpu; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

namespace host_device {

inline HostDeviceAllocator& allocator() {
  static HostDeviceAllocator one;
  return one;
}

inline constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

inline at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                        std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                        std::optional<at::MemoryFormat> format) {
  return at::Tensor(
      at::detail::empty_generic(sizes, &allocator(), kKeys, dtype.value_or(at::kFloat), format));
}

inline at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                                std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                                std::optional<at::Device>, std::optional<bool>) {
  return at::Tensor(at::detail::empty_strided_generic(sizes, strides, &allocator(), kKeys,
                                                      dtype.value_or(at::kFloat)));
}

// The same memory as a tensor of the CPU.
inline at::Tensor on_host(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  const auto& storage = tensor.storage();
  c10::Storage same(c10::Storage::use_byte_size_t(), storage.nbytes(),
                    c10::DataPtr(storage.mutable_data(), c10::kCPU));
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      std::move(same), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  auto* const impl = made.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return made;
}

inline at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  on_host(to).copy_(on_host(from));
  return to;
}

inline at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());  // which makes it contiguous
  return copy_from(from, to, false);
}

inline const at::Tensor& resize(const at::Tensor& tensor, at::IntArrayRef sizes,
                                std::optional<at::MemoryFormat>) {
  auto* const impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(sizes);
  const auto bytes =
      static_cast<size_t>(impl->numel() + impl->storage_offset()) * tensor.itemsize();
  if (tensor.storage().nbytes() < bytes)
    HostDeviceHooks().resizePrivateUse1Bytes(tensor.storage(), bytes);
  return tensor;
}

inline bool is_compatible(const at::Tensor&, const at::Tensor&) { return true; }

inline at::Tensor view(const at::Tensor& tensor, at::IntArrayRef sizes) {
  return at::native::view(tensor, sizes);
}
inline at::Tensor as_strided(const at::Tensor& tensor, at::IntArrayRef sizes,
                             at::IntArrayRef strides, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(tensor, sizes, strides, offset);
}
inline at::Tensor reshape_alias(const at::Tensor& tensor, at::IntArrayRef sizes,
                                at::IntArrayRef strides) {
  return at::native::_reshape_alias(tensor, sizes, strides);
}

inline void by_the_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

}  // namespace host_device

inline ranks::RankDevice take_host_device(int, int) {
  static const c10::impl::DeviceGuardImplRegistrar guard(kHostDevice, new HostDeviceGuard);
  static HostDeviceHooks hooks;
  static std::optional<torch::Library> operators, others;
  if (operators) return {"host:0", true};
  c10::register_privateuse1_backend("host");  // an accelerator to autograd
  at::RegisterPrivateUse1HooksInterface(&hooks);
  c10::SetAllocator(kHostDevice, &host_device::allocator());
  others.emplace(torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  others->fallback(torch::CppFunction::makeFromBoxedFunction<&host_device::by_the_cpu>());
  operators.emplace(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__,
                    __LINE__);
  operators->impl("empty.memory_format", &host_device::empty);
  operators->impl("empty_strided", &host_device::empty_strided);
  operators->impl("_copy_from", &host_device::copy_from);
  operators->impl("_copy_from_and_resize", &host_device::copy_from_and_resize);
  operators->impl("resize_", &host_device::resize);
  operators->impl("_has_compatible_shallow_copy_type", &host_device::is_compatible);
  operators->impl("view", &host_device::view);
  operators->impl("as_strided", &host_device::as_strided);
  operators->impl("_reshape_alias", &host_device::reshape_alias);
  return {"host:0", true};
}

}  // namespace equigrad::conformance
