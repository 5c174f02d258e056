"""What happens on one device: the waves' threads, their turns, and the replicas they work on."""
