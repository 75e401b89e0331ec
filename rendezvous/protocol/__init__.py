"""The agreements of all parts of a job: messages, layout, quota, variables, shared memory."""
