#pragma once

#include <cstdint>
#include <vector>

#include "rannc/comm/communicator.h"

namespace rannc::comm {

/// What a rank is about to do with all others, in 32 bytes.
struct Turn {
  int64_t own = 0;       ///< may differ from rank to rank, as the rows of its batch
  int64_t kind = 0;      ///< this and the rest must be equal on all ranks
  int64_t call = 0;      ///< number of the forward pass
  uint64_t capture = 0;  ///< hash of what is run
};

struct Agreement {
  std::vector<int64_t> own;  ///< [rank]
  bool is_same = true;       ///< all ranks do the same; the same answer on all of them
};

/// Tells every rank's turn to all ranks. A rank alone sends nothing.
[[nodiscard]] Agreement agree(Communicator& comm, const Turn& mine);

}  // namespace rannc::comm
