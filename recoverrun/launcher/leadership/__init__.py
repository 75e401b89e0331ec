"""The launcher that coordinates, and the coordinator that it hosts."""
