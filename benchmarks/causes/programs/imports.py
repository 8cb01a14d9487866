"""A tool that imports torch to print one line."""

import torch

print(torch.__version__)
