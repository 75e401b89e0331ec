"""The position of the script: loops, microbatches, draws, whom the running code stands for."""
