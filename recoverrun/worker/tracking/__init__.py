"""Where the script is: loops, microbatches, draws, whom the running code stands for."""
