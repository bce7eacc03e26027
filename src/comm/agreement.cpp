#include "rannc/comm/agreement.h"

#include <algorithm>
#include <numeric>

namespace rannc::comm {

Agreement agree(Communicator& comm, const Turn& mine) {
  static_assert(sizeof(Turn) == 32, "travels as it lies in memory");
  std::vector<int> ranks(static_cast<size_t>(comm.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::vector<Turn> turns(ranks.size());
  all_gather_into(comm, &mine, sizeof(Turn), turns.data(), ranks, {.what = "agreement on a call"});

  Agreement agreement;
  for (const Turn& turn : turns) {
    agreement.own.push_back(turn.own);
    agreement.is_same &= turn.kind == turns[0].kind && turn.call == turns[0].call &&
                         turn.capture == turns[0].capture;
  }
  return agreement;
}

}  // namespace rannc::comm
