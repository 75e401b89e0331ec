"""The members of a job: formation, the failure detector, flapping nodes."""
