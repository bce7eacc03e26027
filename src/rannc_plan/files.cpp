#include "rannc_plan/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "rannc/util/error.h"
#include "rannc/util/human.h"

namespace rannc::rannc_plan {
namespace {

// Far above the largest real files, far below what a machine holds.
constexpr size_t kMostGraphBytes = size_t{512} << 20;
constexpr size_t kMostPlanBytes = size_t{256} << 20;
constexpr size_t kMostRequestBytes = size_t{16} << 20;
constexpr size_t kMostClusterBytes = size_t{64} << 10;

[[noreturn]] void fail(const std::string& path, std::string_view what, int error) {
  throw ConfigError(fmt::format("{}: {}: {}", path, what, std::strerror(error)));
}

/// Ctrl-C and a request to end wait until this is over.
class WithoutSignals {
 public:
  WithoutSignals() {
    sigset_t signals;
    sigemptyset(&signals);
    for (int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, signal);
    pthread_sigmask(SIG_BLOCK, &signals, &before_);
  }
  ~WithoutSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  WithoutSignals(const WithoutSignals&) = delete;

 private:
  sigset_t before_{};
};

/// What was wrong, or 0.
int write_all(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

/// The file itself where `path` is a link to one.
std::string behind_links(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> real(::realpath(path.c_str(), nullptr),
                                                         &std::free);
  return real ? real.get() : path;
}

bool is_special(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode);
}

void write_special(const std::string& path, std::string_view text) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (file < 0) fail(path, "cannot be written", errno);
  const int error = write_all(file, text);
  ::close(file);
  if (error != 0) fail(path, "cannot be written", error);
}

void write_whole(const std::string& path, std::string_view text) {
  std::string beside = path + ".XXXXXX";
  const int file = ::mkstemp(beside.data());
  if (file < 0) fail(path, "cannot be written", errno);
  const mode_t mask = ::umask(0);
  ::umask(mask);
  int error = ::fchmod(file, 0666 & ~mask) == 0 ? 0 : errno;
  if (error == 0) error = write_all(file, text);
  if (::close(file) != 0 && error == 0) error = errno;
  if (error == 0 && ::rename(beside.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return;
  ::unlink(beside.c_str());
  fail(path, "cannot be written", error);
}

}  // namespace

std::string read_file(const std::string& path, size_t most_bytes) {
  const std::unique_ptr<std::FILE, decltype(&std::fclose)> file(std::fopen(path.c_str(), "rb"),
                                                                &std::fclose);
  if (!file) fail(path, "cannot be read", errno);
  std::string text;
  std::array<char, 65536> piece;
  while (const size_t count = std::fread(piece.data(), 1, piece.size(), file.get())) {
    if (text.size() + count > most_bytes) {
      throw ConfigError(fmt::format("{}: is larger than {}, the most that is read", path,
                                    human_bytes(static_cast<double>(most_bytes))));
    }
    text.append(piece.data(), count);
  }
  if (std::ferror(file.get()) != 0) fail(path, "cannot be read", errno);
  return text;
}

void check_writable(const std::string& path) {
  if (path.empty()) throw ConfigError("the path of the file to write is empty");
  const std::string target = behind_links(path);
  struct stat status {};
  if (::stat(target.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) fail(path, "cannot be written", EISDIR);
    if (!S_ISREG(status.st_mode)) return;
  }
  const size_t slash = target.rfind('/');
  const std::string folder =
      slash == std::string::npos ? "." : target.substr(0, slash == 0 ? 1 : slash);
  if (::access(folder.c_str(), W_OK | X_OK) != 0) fail(path, "cannot be written", errno);
}

void write_file(const std::string& path, std::string_view text) {
  const WithoutSignals quiet;
  const std::string target = behind_links(path);
  is_special(target) ? write_special(target, text) : write_whole(target, text);
}

cost::GraphProfile load_graph(const std::string& path) {
  const std::string text = read_file(path, kMostGraphBytes);
  return call_by_path(path, "graph profile: ", [&] {
    cost::GraphProfile profile = cost::graph_profile_from_json(text);
    if (profile.nodes.empty()) {
      throw ConfigError("$.nodes: is empty, so there is nothing to plan");
    }
    return profile;
  });
}

cost::Cluster load_cluster(const std::string& path) {
  return cost::cluster_from_toml(read_file(path, kMostClusterBytes), path);
}

partition::Request load_request(const std::string& path) {
  const std::string text = read_file(path, kMostRequestBytes);
  return call_by_path(path, "plan request: ", [&] { return partition::request_from_json(text); });
}

plan::Plan load_plan(const std::string& path, bool with_notes) {
  const std::string text = read_file(path, kMostPlanBytes);
  return call_by_path(path, "plan: ", [&] { return plan::plan_from_json(text, with_notes); });
}

}  // namespace rannc::rannc_plan
