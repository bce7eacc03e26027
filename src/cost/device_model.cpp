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
const std::array<DeviceModel, 11> kCatalogue{{
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
     .float16 = {989 * kTera, 0.7, 0.21, 0.2, 0.25, 0.2},
     .bfloat16 = {989 * kTera, 0.7, 0.21, 0.2, 0.25, 0.2},
     .tf32_flops_per_s = 494 * kTera,
     .memory = {3350 * kGiga, 0.85, 0.65, 0.4, 0.21},
     .kernel_ns = 2000,
     .call_ns = 5000,
     .memory_bytes = 80 * kGibi},
    // NVIDIA H200 SXM 141 GB data sheet (2024): the chip of the H100 with 4.8 TB/s.
    {.name = "h200",
     .float64 = {67 * kTera, 0.75, 0.4, 0.3, 0.35},
     .float32 = {67 * kTera, 0.75, 0.4, 0.3, 0.4},
     .float16 = {989 * kTera, 0.7, 0.21, 0.2, 0.25, 0.2},
     .bfloat16 = {989 * kTera, 0.7, 0.21, 0.2, 0.25, 0.2},
     .tf32_flops_per_s = 494 * kTera,
     .memory = {4800 * kGiga, 0.85, 0.65, 0.4, 0.21},
     .kernel_ns = 2000,
     .call_ns = 5000,
     .memory_bytes = 141 * kGiga},
    // NVIDIA H100 PCIe 80 GB data sheet (2022): 51 (fp64 tensor, fp32) / 378 (TF32) / 756 (half)
    // TFLOPS, 2 TB/s.
    {.name = "h100-pcie",
     .float64 = {51 * kTera, 0.75, 0.4, 0.3, 0.35},
     .float32 = {51 * kTera, 0.75, 0.4, 0.3, 0.4},
     .float16 = {756 * kTera, 0.7, 0.21, 0.2, 0.25, 0.2},
     .bfloat16 = {756 * kTera, 0.7, 0.21, 0.2, 0.25, 0.2},
     .tf32_flops_per_s = 378 * kTera,
     .memory = {2000 * kGiga, 0.85, 0.65, 0.4, 0.21},
     .kernel_ns = 2000,
     .call_ns = 5000,
     .memory_bytes = 80 * kGibi},
    // NVIDIA HGX B200 data sheet (2024), one of eight at 1,000 W: 40 (fp64) / 80 (fp32) / 1,100
    // (TF32) / 2,250 (half) TFLOPS, 8 TB/s, 180 GB.
    {.name = "b200",
     .float64 = {40 * kTera, 0.75, 0.4, 0.3, 0.35},
     .float32 = {80 * kTera, 0.75, 0.4, 0.3, 0.4},
     .float16 = {2250 * kTera, 0.7, 0.21, 0.2, 0.25, 0.2},
     .bfloat16 = {2250 * kTera, 0.7, 0.21, 0.2, 0.25, 0.2},
     .tf32_flops_per_s = 1100 * kTera,
     .memory = {8000 * kGiga, 0.85, 0.65, 0.4, 0.21},
     .kernel_ns = 2000,
     .call_ns = 5000,
     .memory_bytes = 180 * kGiga},
    // NVIDIA A10 data sheet (2021): 31.2 (fp32) / 62.5 (TF32) / 125 (half) TFLOPS, 600 GB/s; fp64
    // at a 64th of fp32.
    {.name = "a10",
     .float64 = {0.49 * kTera, 0.9, 0.5, 0.4, 0.4},
     .float32 = {31.2 * kTera, 0.85, 0.5, 0.4, 0.5},
     .float16 = {125 * kTera, 0.75, 0.45, 0.6, 0.35},
     .bfloat16 = {125 * kTera, 0.75, 0.45, 0.6, 0.35},
     .tf32_flops_per_s = 62.5 * kTera,
     .memory = {600 * kGiga, 0.85, 0.65, 0.4},
     .kernel_ns = 2500,
     .call_ns = 6000,
     .memory_bytes = 24 * kGibi},
    // NVIDIA L4 data sheet (2023): 30.3 (fp32) / 60 (TF32) / 121 (half) TFLOPS, 300 GB/s; fp64 at a
    // 64th of fp32.
    {.name = "l4",
     .float64 = {0.47 * kTera, 0.9, 0.5, 0.4, 0.4},
     .float32 = {30.3 * kTera, 0.85, 0.5, 0.4, 0.5},
     .float16 = {121 * kTera, 0.75, 0.45, 0.6, 0.35},
     .bfloat16 = {121 * kTera, 0.75, 0.45, 0.6, 0.35},
     .tf32_flops_per_s = 60 * kTera,
     .memory = {300 * kGiga, 0.85, 0.65, 0.4},
     .kernel_ns = 2500,
     .call_ns = 6000,
     .memory_bytes = 24 * kGibi},
    // NVIDIA L40S data sheet (2023): 91.6 (fp32) / 183 (TF32) / 362 (half) TFLOPS, 864 GB/s; fp64
    // at a 64th of fp32.
    {.name = "l40s",
     .float64 = {1.43 * kTera, 0.9, 0.5, 0.4, 0.4},
     .float32 = {91.6 * kTera, 0.85, 0.5, 0.4, 0.5},
     .float16 = {362 * kTera, 0.75, 0.45, 0.6, 0.35},
     .bfloat16 = {362 * kTera, 0.75, 0.45, 0.6, 0.35},
     .tf32_flops_per_s = 183 * kTera,
     .memory = {864 * kGiga, 0.85, 0.65, 0.4},
     .kernel_ns = 2500,
     .call_ns = 6000,
     .memory_bytes = 48 * kGibi},
    // AMD Instinct MI300X data sheet (2023): 163.4 (fp64 and fp32 matrix) / 1,307.4 (half) TFLOPS,
    // 5.3 TB/s. torch computes float32 convolutions in float32 there.
    {.name = "mi300x",
     .float64 = {163.4 * kTera, 0.6, 0.35, 0.3, 0.3},
     .float32 = {163.4 * kTera, 0.6, 0.35, 0.3, 0.35},
     .float16 = {1307.4 * kTera, 0.5, 0.3, 0.25, 0.2},
     .bfloat16 = {1307.4 * kTera, 0.5, 0.3, 0.25, 0.2},
     .memory = {5300 * kGiga, 0.75, 0.6, 0.4},
     .kernel_ns = 3000,
     .call_ns = 7000,
     .memory_bytes = 192 * kGiga},
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
