"""A drop-in for torchrun whose training steps survive the loss of a replica."""

__version__ = "0.1.0"
