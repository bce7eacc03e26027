"""The private declarations of NCCL are those of the real header, where that is found."""

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
# NCCL's header needs of CUDA's only names of types.
CUDA = {
    "cuda_runtime.h": "#pragma once\ntypedef struct CUstream_st* cudaStream_t;\n",
    "cuda_fp16.h": "#pragma once\n",
}
COMPARE = """
#include <cstddef>
#include <type_traits>
#include <nccl.h>
#include "comm/nccl/api.h"
namespace ours = rannc::comm::nccl;
#define SAME(mine, theirs) static_assert(static_cast<int>(mine) == static_cast<int>(theirs))
SAME(ours::kSuccess, ncclSuccess);
SAME(ours::kUnhandledCudaError, ncclUnhandledCudaError);
SAME(ours::kSystemError, ncclSystemError);
SAME(ours::kInternalError, ncclInternalError);
SAME(ours::kInvalidArgument, ncclInvalidArgument);
SAME(ours::kInvalidUsage, ncclInvalidUsage);
SAME(ours::kRemoteError, ncclRemoteError);
SAME(ours::kInProgress, ncclInProgress);
SAME(ours::kInt8, ncclInt8);
SAME(ours::kUint8, ncclUint8);
SAME(ours::kInt32, ncclInt32);
SAME(ours::kInt64, ncclInt64);
SAME(ours::kFloat16, ncclFloat16);
SAME(ours::kFloat32, ncclFloat32);
SAME(ours::kFloat64, ncclFloat64);
SAME(ours::kBfloat16, ncclBfloat16);
SAME(ours::kSum, ncclSum);
SAME(ours::kNoColor, NCCL_SPLIT_NOCOLOR);
SAME(ours::kUndefined, NCCL_CONFIG_UNDEF_INT);
static_assert(ours::kConfigMagic == NCCL_API_MAGIC);
static_assert(ours::kUniqueIdBytes == NCCL_UNIQUE_ID_BYTES);
static_assert(sizeof(ours::UniqueId) == sizeof(ncclUniqueId));
static_assert(sizeof(ours::Config) <= sizeof(ncclConfig_t));
#define PLACE(mine, theirs) \\
  static_assert(offsetof(ours::Config, mine) == offsetof(ncclConfig_t, theirs)); \\
  static_assert(sizeof(ours::Config::mine) == sizeof(ncclConfig_t::theirs))
PLACE(size, size);
PLACE(magic, magic);
PLACE(version, version);
PLACE(blocking, blocking);
PLACE(cga_cluster_size, cgaClusterSize);
PLACE(min_ctas, minCTAs);
PLACE(max_ctas, maxCTAs);
PLACE(net_name, netName);
PLACE(split_share, splitShare);
PLACE(traffic_class, trafficClass);

// Arguments of one function after the other: as many, and each of the same size.
template <class Mine, class Theirs>
struct Alike : std::false_type {};
template <class R, class... A, class S, class... B>
  requires(sizeof...(A) == sizeof...(B))
struct Alike<R (*)(A...), S (*)(B...)>
    : std::bool_constant<sizeof(R) == sizeof(S) && (... && (sizeof(A) == sizeof(B)))> {};
#define FUNCTION(mine, theirs) \\
  static_assert(Alike<decltype(ours::Api::mine), decltype(&theirs)>::value)
FUNCTION(get_version, ncclGetVersion);
FUNCTION(get_unique_id, ncclGetUniqueId);
FUNCTION(comm_init_rank_config, ncclCommInitRankConfig);
FUNCTION(comm_split, ncclCommSplit);
FUNCTION(comm_abort, ncclCommAbort);
FUNCTION(comm_get_async_error, ncclCommGetAsyncError);
FUNCTION(send, ncclSend);
FUNCTION(recv, ncclRecv);
FUNCTION(all_reduce, ncclAllReduce);
FUNCTION(reduce_scatter, ncclReduceScatter);
FUNCTION(all_gather, ncclAllGather);
FUNCTION(group_start, ncclGroupStart);
FUNCTION(group_end, ncclGroupEnd);
FUNCTION(get_error_string, ncclGetErrorString);
FUNCTION(get_last_error, ncclGetLastError);
"""


def header():
    """NCCL's, of $NCCL_HOME, of a Python package, or of the system."""
    places = [Path(sysconfig.get_path("purelib"), "nvidia", "nccl"), Path("/usr")]
    if os.environ.get("NCCL_HOME"):
        places.insert(0, Path(os.environ["NCCL_HOME"]))
    return next((p / "include" for p in places if (p / "include" / "nccl.h").is_file()), None)


def test_the_declarations_are_those_of_the_real_header(tmp_path):
    found, compiler = header(), shutil.which("g++")
    if found is None:
        pytest.skip("no nccl.h: neither in $NCCL_HOME, nor a package nvidia-nccl, nor the system's")
    if compiler is None:
        pytest.skip("no g++")
    for name, text in CUDA.items():
        (tmp_path / name).write_text(text)
    source = tmp_path / "compare.cpp"
    source.write_text(COMPARE)
    flags = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror"]
    includes = [f"-I{tmp_path}", f"-I{found}", f"-I{ROOT / 'src'}"]
    job = subprocess.run(
        [compiler, *flags, *includes, str(source)], capture_output=True, text=True, timeout=120
    )
    assert job.returncode == 0, job.stderr[:3000]
