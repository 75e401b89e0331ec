"""gloo and NCCL communicators that are made anew for each generation."""
