"""Started as a program by a test: says which horovod an entry point gets."""

import horovod

print(horovod.__file__)
