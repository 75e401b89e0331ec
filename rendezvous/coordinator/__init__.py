"""The coordinator of a job: members, steps, losses, guarantees, takeover."""
