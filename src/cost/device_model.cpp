#include "rannc/cost/device_model.h"

#include <fmt/format.h>

#include <array>

#include "rannc/util/error.h"
#include "rannc/util/human.h"

namespace rannc::cost {
namespace {

constexpr double kTera = 1e12;
constexpr double kGiga = 1e9;
constexpr double kGibi = 1024.0 * 1024 * 1024;

// Peaks are those of the vendors' data sheets, dense (no sparsity). Where the shares come from, and
// what they leave out, is in docs/device-models.md.
const std::array<DeviceModel, 5> kCatalogue{{
    // NVIDIA V100 SXM2 32 GB data sheet (2020): 7.8 / 15.7 / 125 (fp16) TFLOPS, 900 GB/s. There are
    // no units for bfloat16: torch computes in float32.
    {.name = "v100",
     .float64 = {7.8 * kTera, 0.9, 0.6, 0.5, 0.5},
     .float32 = {15.7 * kTera, 0.85, 0.6, 0.4, 0.5},
     .float16 = {125 * kTera, 0.7, 0.45, 0.3, 0.35},
     .bfloat16 = {15.7 * kTera, 0.6, 0.5, 0.3, 0.35},
     .memory = {900 * kGiga, 0.85, 0.65, 0.4},
     .kernel_ns = 3000,
     .call_ns = 8000,
     .memory_bytes = 32 * kGibi},
    // NVIDIA A100 SXM 80 GB data sheet (2021): 19.5 (fp64 tensor, fp32) / 156 (TF32) / 312 (half)
    // TFLOPS, 2039 GB/s.
    {.name = "a100",
     .float64 = {19.5 * kTera, 0.85, 0.5, 0.4, 0.4},
     .float32 = {19.5 * kTera, 0.9, 0.5, 0.4, 0.5},
     .float16 = {312 * kTera, 0.75, 0.45, 0.6, 0.35},
     .bfloat16 = {312 * kTera, 0.75, 0.45, 0.6, 0.35},
     .tf32_flops_per_s = 156 * kTera,
     .memory = {2039 * kGiga, 0.85, 0.65, 0.4},
     .kernel_ns = 2500,
     .call_ns = 6000,
     .memory_bytes = 80 * kGibi},
    // NVIDIA H100 SXM5 80 GB data sheet (2023): 67 (fp64 tensor, fp32) / 494 (TF32) / 989 (half)
    // TFLOPS, 3.35 TB/s.
    {.name = "h100",
     .float64 = {67 * kTera, 0.75, 0.4, 0.3, 0.35},
     .float32 = {67 * kTera, 0.75, 0.4, 0.3, 0.4},
     .float16 = {989 * kTera, 0.7, 0.4, 0.33, 0.25},
     .bfloat16 = {989 * kTera, 0.7, 0.4, 0.33, 0.25},
     .tf32_flops_per_s = 494 * kTera,
     .memory = {3350 * kGiga, 0.85, 0.65, 0.4},
     .kernel_ns = 2000,
     .call_ns = 5000,
     .memory_bytes = 80 * kGibi},
    // NVIDIA H200 SXM 141 GB data sheet (2024): the chip of the H100 with 4.8 TB/s.
    {.name = "h200",
     .float64 = {67 * kTera, 0.75, 0.4, 0.3, 0.35},
     .float32 = {67 * kTera, 0.75, 0.4, 0.3, 0.4},
     .float16 = {989 * kTera, 0.7, 0.4, 0.33, 0.25},
     .bfloat16 = {989 * kTera, 0.7, 0.4, 0.33, 0.25},
     .tf32_flops_per_s = 494 * kTera,
     .memory = {4800 * kGiga, 0.85, 0.65, 0.4},
     .kernel_ns = 2000,
     .call_ns = 5000,
     .memory_bytes = 141 * kGiga},
    // One core of an AVX2 server: 3 GHz * 2 fused multiply-adds * 8 lanes * 2 flops; one channel of
    // DDR4-3200. Half precision has no units of its own.
    {.name = "cpu",
     .float64 = {48 * kGiga, 0.8, 0.4, 0.4, 0.4},
     .float32 = {96 * kGiga, 0.8, 0.5, 0.4, 0.4},
     .float16 = {96 * kGiga, 0.1, 0.1, 0.1, 0.1},
     .bfloat16 = {96 * kGiga, 0.2, 0.2, 0.2, 0.2},
     .memory = {25.6 * kGiga, 0.4, 0.3, 0.3},
     .kernel_ns = 2000,
     .memory_bytes = 16 * kGibi},
}};

}  // namespace

DeviceModel device_model(std::string_view name) {
  std::vector<std::string> names;
  for (const DeviceModel& model : kCatalogue) {
    if (model.name == name) return model;
    names.push_back(model.name);
  }
  throw ConfigError(fmt::format("unknown device '{}'; did you mean '{}'? Known: {}", name,
                                closest(name, names), fmt::join(names, ", ")));
}

}  // namespace rannc::cost
