"""Settings of all tests."""

import torch as th

# Networks are tiny here: one thread is fastest, and sums then always have the same order.
th.set_num_threads(1)
