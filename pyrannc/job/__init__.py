"""What the ranks of a job agree on and share: settings, graphs, cores, memory."""
