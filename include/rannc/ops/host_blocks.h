#pragma once

namespace rannc::ops {

/// From now on torch's tensors on the host take blocks of malloc that it can reuse exactly.
///
/// torch asks posix_memalign, for which glibc needs up to 96 bytes more than the block that it
/// returns. So a block that was freed is too small for the next tensor of its size, and a step that
/// keeps small tensors between large ones creeps through the whole heap. These blocks are aligned
/// here, by as many bytes more as they have had before. False where somebody else has set torch's
/// allocator of the host, and nothing has changed.
bool reuse_freed_blocks();

}  // namespace rannc::ops
