#include "rannc/util/host_memory.h"

#include <cstdlib>  // defines __GLIBC__

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace rannc {

bool keep_freed_memory() {
#ifdef __GLIBC__
  // man 3 mallopt: no block from mmap, which frees by munmap; and no trimming of the heap.
  return mallopt(M_MMAP_MAX, 0) == 1 && mallopt(M_TRIM_THRESHOLD, -1) == 1;
#else
  return false;
#endif
}

}  // namespace rannc
