#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "rannc_plan/run.h"

namespace rannc::rannc_plan::testing {

// The example of docs/planner-files.md.
inline const std::string kGraph = R"({"format": "rannc-graph-profile", "version": 1, "name": "tiny",
 "dtype": "float32", "rows": [1, 4],
 "inputs": [{"name": "x", "bytes_per_row": 400}],
 "params": [{"id": "emb.weight", "bytes": 8000}, {"id": "mlp.weight", "bytes": 4000}],
 "nodes": [
  {"name": "emb",  "op": "embedding", "inputs": ["x"], "params": ["emb.weight"],
   "outputs": [{"bytes_per_row": 1000}],
   "forward_ns": [100, 400], "backward_ns": [200, 800], "saved_bytes": [400, 1600]},
  {"name": "mlp",  "op": "linear", "inputs": ["emb"], "params": ["mlp.weight"],
   "outputs": [{"bytes_per_row": 1000}],
   "forward_ns": [250, 700], "backward_ns": [500, 1400], "saved_bytes": [1000, 4000],
   "workspace_bytes": [64, 64]},
  {"name": "head", "op": "linear", "inputs": ["mlp"], "params": ["emb.weight"],
   "outputs": [{"fixed_bytes": 4}],
   "forward_ns": [100, 400], "backward_ns": [200, 800], "saved_bytes": [1000, 4000]}]})";
inline const std::string kCluster = R"(format = "rannc-cluster"
version = 1
hosts = 2
devices_per_host = 2
device_memory_bytes = 100000
[intra_host]
bandwidth_bytes_per_s = 1e9
latency_ns = 10
[inter_host]
bandwidth_bytes_per_s = 1e8
latency_ns = 100
)";
inline const std::string kRequest =
    R"({"format": "rannc-plan-request", "version": 1, "global_batch": 8})";
inline const std::string kPlan = R"({"format": "rannc-plan", "version": 1, "schedule": "1f1b",
 "micro_batches": 2, "stages": [{"nodes": ["emb", "mlp"], "ranks": [0, 1]},
                                {"nodes": ["head"], "ranks": [2]}]})";

/// A folder with the four files of the example, removed in the end.
class Files : public ::testing::Test {
 protected:
  Files()
      : folder_(std::filesystem::temp_directory_path() /
                ("rannc-program-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
    write("graph.json", kGraph);
    write("cluster.toml", kCluster);
    write("request.json", kRequest);
    write("plan.json", kPlan);
  }
  ~Files() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] std::string path(const std::string& name) const { return folder_ / name; }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
  }
  [[nodiscard]] std::string read(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(path(name)).rdbuf();
    return text.str();
  }

  struct Answer {
    int code;
    std::string out, err;
  };
  /// A word "@NAME" is the path of that file.
  [[nodiscard]] Answer run(const std::vector<std::string>& arguments) const {
    std::vector<std::string> words{"rannc-plan"};
    for (const std::string& word : arguments) {
      words.push_back(word.starts_with('@') ? path(word.substr(1)) : word);
    }
    std::vector<const char*> pointers;
    for (const std::string& word : words) pointers.push_back(word.c_str());
    std::ostringstream out, err;
    const int code = rannc_plan::run(pointers, out, err);
    // The folder's name differs from run to run.
    const auto relative = [&](std::string text) {
      for (size_t at; (at = text.find(folder_.string() + "/")) != std::string::npos;) {
        text.erase(at, folder_.string().size() + 1);
      }
      return text;
    };
    return {code, relative(out.str()), relative(err.str())};
  }

  std::filesystem::path folder_;
};

}  // namespace rannc::rannc_plan::testing
