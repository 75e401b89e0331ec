"""Job files and training scripts to copy from. Nothing here knows of recoverrun."""
