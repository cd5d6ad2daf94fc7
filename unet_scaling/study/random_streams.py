"""Numbers that keep the random numbers of different uses apart, whatever their seeds.

Each goes last into the key of a generator, after the seed.
"""

# Never reuse or renumber those of the data: every run would split, order and augment it otherwise.
SPLIT_STREAM = 1
ORDER_STREAM = 2
AUGMENTATION_STREAM = 3
STEP_SAMPLE_STREAM = 4
EMULATION_STREAM = 5
TRANSFORM_STREAM = 6
UNTRAINED_STREAM = 7
CURVE_STREAM = 8
WORKER_STREAM = 9
