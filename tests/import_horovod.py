"""Started as a program by a test: says which horovod an entry point gets."""

import horovod.torch

print(horovod.torch.__file__)
