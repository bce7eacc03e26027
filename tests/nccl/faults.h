#pragma once

#include <cstdint>
#include <string>

namespace rannc::standin_nccl {

/// What a test wants this process to do wrong: STANDIN_NCCL_FAULT is `kind:rank` or
/// `kind:rank:number`, several with commas between them.
///
///   never_joins      its ncclCommInitRankConfig goes on for ever
///   warns            while it joins, says one thing after the other as its last error
///   version          says to be NCCL `number`
///   world            joins a world of `number` ranks
///   dies, stops      (SIGKILL, SIGSTOP) at its call `number`, as the device runs it
///   never_completes  its call `number` does not end until it is aborted
///   async_error      its call `number` ends with an asynchronous error
///   abort_hangs      its ncclCommAbort does not return
///   hangs_inside     its call `number` does not return before its communicator is aborted
///   stays_inside     its call `number` never returns
///
/// The number of a fault of `rank`; 0: it has none of this kind. Calls are counted from 1.
int fault(const std::string& kind, int rank);

/// STANDIN_NCCL_VERSION, else 23004.
int version_of(int rank);
/// STANDIN_NCCL_BUFFERED: a send ends when its bytes are under way. Otherwise it ends when the
/// other side has taken them.
bool is_buffered();
/// STANDIN_NCCL_ONE_AT_A_TIME: a device runs a call when those before it have ended, on whatever
/// streams they are.
bool is_one_at_a_time();
/// STANDIN_NCCL_CONNECTION_MIB: so much of its device's memory a communicator takes at the first
/// message to or from each other rank, and at its first collective, until it is aborted.
int64_t connection_bytes();
/// STANDIN_NCCL_BYTES_PER_S: as fast are the links, on which each call is for itself; 0: they take
/// no time.
double bytes_per_s();

}  // namespace rannc::standin_nccl
