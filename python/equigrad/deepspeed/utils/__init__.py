"""As equigrad.utils, and DeepSpeed's place of groups."""

from equigrad import utils
from equigrad.deepspeed.utils import groups
from equigrad.utils import *  # noqa: F403  what DeepSpeed's module has of it

__all__ = ["groups"]
__all__ += utils.__all__
