#include "rannc/util/host_memory.h"

#include <climits>
#include <cstdlib>  // defines __GLIBC__

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace rannc {

bool keep_freed_memory(int64_t most_bytes) {
#ifdef __GLIBC__
  // man 3 mallopt: no block from mmap, which frees by munmap. It takes an int for the threshold, of
  // which -1 is "never".
  const int most = most_bytes < 0 || most_bytes > INT_MAX ? -1 : static_cast<int>(most_bytes);
  return mallopt(M_MMAP_MAX, 0) == 1 && mallopt(M_TRIM_THRESHOLD, most) == 1;
#else
  (void)most_bytes;
  return false;
#endif
}

bool give_back_freed_memory() {
#ifdef __GLIBC__
  malloc_trim(0);  // says whether there was any
  return true;
#else
  return false;
#endif
}

}  // namespace rannc
