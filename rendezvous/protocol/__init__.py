"""What all parts of a job agree on: messages, layout, quota, variables, shared memory."""
