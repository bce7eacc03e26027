#pragma once

namespace rannc {

/// From now on freed memory stays with this process, large blocks too, instead of going back to the
/// system: every step of a training loop needs the same memory again, and taking it anew means a
/// page fault for every 4 KiB. False where the C library is not glibc, and nothing has changed.
bool keep_freed_memory();

}  // namespace rannc
