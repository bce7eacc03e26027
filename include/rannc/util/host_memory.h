#pragma once

#include <cstdint>

namespace rannc {

/// From now on freed memory stays with this process, large blocks too, instead of going back to the
/// system: every step of a training loop needs the same memory again, and taking it anew means a
/// page fault for every 4 KiB. Where more than `most_bytes` are free at the end of the heap, they
/// go back all the same; negative: never. False where the C library is not glibc, and nothing has
/// changed.
bool keep_freed_memory(int64_t most_bytes = -1);

/// What is free now goes back to the system, wherever in the heap it lies, page by page. False
/// where the C library is not glibc.
bool give_back_freed_memory();

}  // namespace rannc
