"""What a training loop does around the calls: norms of gradients, loss scales, optimizer steps."""
