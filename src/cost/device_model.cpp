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

// Dense peaks (no sparsity) from the vendors' datasheets. Matrix work of real models reaches 40 to
// 60 % of them; one kernel launch from eager PyTorch costs 4 to 6 us of host time.
const std::array<DeviceModel, 5> kCatalogue{{
    // NVIDIA V100 SXM2 32 GB datasheet (2018): 15.7 / 125 TFLOPS, 900 GB/s.
    {"v100", 15.7 * kTera, 125 * kTera, 900 * kGiga, 6000, 0.5, 32 * kGibi},
    // NVIDIA A100 SXM 80 GB datasheet (2021): 19.5 / 312 TFLOPS, 2039 GB/s.
    {"a100", 19.5 * kTera, 312 * kTera, 2039 * kGiga, 5000, 0.5, 80 * kGibi},
    // NVIDIA H100 SXM5 80 GB datasheet (2023): 67 / 989 TFLOPS, 3.35 TB/s.
    {"h100", 67 * kTera, 989 * kTera, 3350 * kGiga, 4000, 0.5, 80 * kGibi},
    // NVIDIA H200 SXM 141 GB datasheet (2024): 67 / 989 TFLOPS, 4.8 TB/s.
    {"h200", 67 * kTera, 989 * kTera, 4800 * kGiga, 4000, 0.5, 141 * kGiga},
    // One core of an AVX2 server: 3 GHz * 2 fused multiply-adds * 8 lanes * 2 flops; one channel of
    // DDR4-3200. Half precision has no units of its own.
    {"cpu", 96 * kGiga, 96 * kGiga, 25.6 * kGiga, 2000, 0.5, 16 * kGibi},
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
