"""Process groups in torch's tables, the topology of replicas, devices."""
