#pragma once

#include <c10/util/StringUtil.h>

#include <cstdint>

#include "rannc/ir/graph.h"
#include "rannc/plan/program.h"
#include "rannc/util/error.h"

namespace rannc::runtime {

/// Tags tell calls apart, so that a backward of another call is no gradient of this one. Ranges
/// come round again, because messages of equal tags arrive in the order sent.
inline constexpr int64_t kTagsOfCall = int64_t{1} << 24;
inline constexpr int64_t kCallsApart = (int64_t{1} << 30) / kTagsOfCall;  // the caller's end there

/// A call's tags: two for each transfer, one for either direction, then those of statistics of the
/// whole batch, up to two for each node; from the end on, those of buckets.
inline int64_t first_tag_of(int64_t call) { return call % kCallsApart * kTagsOfCall; }

// Twice plan::kBucketShare, one for each dtype, and the last for the counts.
inline constexpr int64_t kTagsOfReduction = 256;

inline int64_t first_bucket_tag(int64_t call, size_t reduction) {
  return first_tag_of(call) + kTagsOfCall - kTagsOfReduction * static_cast<int64_t>(reduction + 1);
}

/// The same for all calls, so that ranks at different ones find out.
inline int64_t count_tag(size_t reduction) {
  return first_bucket_tag(/*call=*/0, reduction) + kTagsOfReduction - 1;
}

inline void check_tags(const plan::Program& program, const ir::Graph& graph) {
  const auto transfers = static_cast<int64_t>(program.transfers.size());
  const auto nodes = static_cast<int64_t>(graph.nodes.size());
  const auto reductions = static_cast<int64_t>(program.reductions.size());
  RANNC_CHECK(2 * (transfers + nodes) + kTagsOfReduction * reductions <= kTagsOfCall,
              c10::str(transfers, " messages, up to ", nodes, " batch normalisations and ",
                       reductions, " reductions in one iteration"));
}

}  // namespace rannc::runtime
