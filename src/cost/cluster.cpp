#include "rannc/cost/cluster.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <vector>

#include "rannc/util/error.h"
#include "rannc/util/human.h"
#include "rannc/util/json.h"

// The file cluster.toml; docs/planner-files.md, section 2.
namespace rannc::cost {
namespace {

constexpr int kMaxRanks = 1 << 24;
constexpr size_t kMaxFileBytes = size_t{64} << 10;
// Time is bytes over bandwidth: between these limits it is finite.
constexpr double kLeastBandwidth = 1e-9;
constexpr double kLeastSpeed = 1e-6;

/// Orders of hosts that are all searched.
/// tuned by: a bound on the time of planning, which each order takes once.
/// without it: hosts of many kinds are searched in each of their orders.
constexpr size_t kMostHostOrders = 6;

/// One table of the file; errors name file, line, column and key.
class Table {
 public:
  Table(const toml::table& table, std::string_view file, std::string prefix)
      : table_(table), file_(file), prefix_(std::move(prefix)) {}

  [[noreturn]] void fail(const toml::node& node, std::string_view key,
                         const std::string& why) const {
    const toml::source_position at = node.source().begin;
    throw ConfigError(fmt::format("{}: line {}, column {}: {}{}: {}", file_, at.line, at.column,
                                  prefix_, key, why));
  }

  void allow_only(const std::vector<std::string>& keys) const {
    for (const auto& [key, node] : table_) {
      if (std::ranges::find(keys, key.str()) != keys.end()) continue;
      fail(node, key.str(),
           fmt::format("unknown key; did you mean '{}'?", closest(key.str(), keys)));
    }
  }

  [[nodiscard]] const toml::node& at(std::string_view key) const {
    const toml::node* node = table_.get(key);
    if (node == nullptr) throw ConfigError(fmt::format("{}: {}{} is missing", file_, prefix_, key));
    return *node;
  }

  [[nodiscard]] double number(std::string_view key) const {
    const toml::node& node = at(key);
    // value<double>() has nothing to say of integers that no double is, such as some above 2^53.
    double value = 0;
    if (const toml::value<int64_t>* whole = node.as_integer()) {
      value = static_cast<double>(whole->get());
    } else if (const toml::value<double>* real = node.as_floating_point()) {
      value = real->get();
    } else {
      fail(node, key, "expected a number");
    }
    if (!std::isfinite(value) || value < 0) {
      fail(node, key, fmt::format("expected a finite number of at least 0, found {}", value));
    }
    if (value > json::kMostNumber) {
      fail(node, key,
           fmt::format("expected a number of at most {}, found {}", json::kMostNumber, value));
    }
    return value;
  }

  [[nodiscard]] int count(std::string_view key) const {
    const toml::node& node = at(key);
    if (!node.is_integer()) fail(node, key, "expected an integer");
    const int64_t value = *node.value<int64_t>();
    if (value < 1 || value > kMaxRanks) {
      fail(node, key, fmt::format("expected an integer from 1 to {}, found {}", kMaxRanks, value));
    }
    return static_cast<int>(value);
  }

  /// The elements of an array of integers from 0 on.
  [[nodiscard]] std::vector<int> indices(std::string_view key) const {
    const toml::node& node = at(key);
    if (!node.is_array()) fail(node, key, "expected an array of integers");
    std::vector<int> result;
    for (const toml::node& each : *node.as_array()) {
      const int64_t value = each.is_integer() ? *each.value<int64_t>() : -1;
      if (value < 0 || value >= kMaxRanks) fail(each, key, "expected numbers of hosts, from 0 on");
      result.push_back(static_cast<int>(value));
    }
    return result;
  }

  /// Those of an array of tables.
  [[nodiscard]] std::vector<const toml::table*> tables(std::string_view key) const {
    const toml::node& node = at(key);
    if (!node.is_array_of_tables()) fail(node, key, "expected an array of tables");
    std::vector<const toml::table*> result;
    for (const toml::node& each : *node.as_array()) result.push_back(each.as_table());
    return result;
  }

  [[nodiscard]] const toml::table* table(std::string_view key) const {
    const toml::node* node = table_.get(key);
    if (node == nullptr) return nullptr;
    if (!node->is_table()) fail(*node, key, "expected a table");
    return node->as_table();
  }

 private:
  const toml::table& table_;
  std::string_view file_;
  std::string prefix_;
};

constexpr int64_t kNewest = 3;

/// Returns the version.
int64_t check_header(const Table& root) {
  const toml::node& format = root.at("format");
  if (format.value<std::string>() != "rannc-cluster") {
    root.fail(format, "format", "expected \"rannc-cluster\"");
  }
  const toml::node& version = root.at("version");
  const int64_t number = version.is_integer() ? *version.value<int64_t>() : 0;
  if (number < 1 || number > kNewest) {
    root.fail(version, "version",
              fmt::format("is unknown; this program reads versions 1 to {}", kNewest));
  }
  return number;
}

Link read_link(const Table& table) {
  return {.bandwidth_bytes_per_s = table.number("bandwidth_bytes_per_s"),
          .latency_ns = table.number("latency_ns")};
}

void verify_link(const Link& link, std::string_view key, bool used) {
  const auto check = [&](double value, std::string_view name) {
    if (std::isfinite(value) && value >= 0) return;
    throw ConfigError(fmt::format(
        "cluster: {}.{}: expected a finite number of at least 0, found {}", key, name, value));
  };
  check(link.bandwidth_bytes_per_s, "bandwidth_bytes_per_s");
  check(link.latency_ns, "latency_ns");
  if (used && link.bandwidth_bytes_per_s < kLeastBandwidth) {
    throw ConfigError(
        fmt::format("cluster: {}.bandwidth_bytes_per_s: must be at least {}, as "
                    "devices talk over this link, found {}",
                    key, kLeastBandwidth, link.bandwidth_bytes_per_s));
  }
}

void verify_count(int value, std::string_view key) {
  if (value >= 1 && value <= kMaxRanks) return;
  throw ConfigError(fmt::format("cluster: {}: expected an integer from 1 to {}, found {}", key,
                                kMaxRanks, value));
}

std::string link_text(std::string_view name, const Link& link) {
  return fmt::format("[{}]\nbandwidth_bytes_per_s = {}\nlatency_ns = {}\n", name,
                     json::number_text(link.bandwidth_bytes_per_s),
                     json::number_text(link.latency_ns));
}

/// The parser's look-up of characters beyond ASCII runs into undefined behaviour for some of them
/// (toml++ issues 190 and 295), and nothing in this file needs one outside of a comment.
void check_characters(std::string_view text, std::string_view file) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  size_t line_begin = text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
  bool comment = false;
  int line = 1;
  for (size_t at = line_begin; at < text.size(); ++at) {
    if (text[at] == '\n') {
      ++line;
      line_begin = at + 1;
      comment = false;
    } else if (text[at] == '#') {
      comment = true;
    } else if (!comment && static_cast<unsigned char>(text[at]) >= 0x80) {
      throw ConfigError(fmt::format(
          "{}: line {}, column {}: only comments may hold characters that are not ASCII", file,
          line, at - line_begin + 1));
    }
  }
}

void verify_hosts_of_ranks(const Cluster& cluster) {
  if (cluster.host_of_rank.empty()) return;
  std::vector<int> devices(static_cast<size_t>(cluster.hosts), 0);
  for (const int host : cluster.host_of_rank) {
    if (host < 0 || host >= cluster.hosts) {
      throw ConfigError(fmt::format(
          "cluster: host_of_rank: there is no host {} among {}, from 0 on", host, cluster.hosts));
    }
    ++devices[static_cast<size_t>(host)];
  }
  if (const auto none = std::ranges::find(devices, 0); none != devices.end()) {
    throw ConfigError(fmt::format("cluster: host_of_rank: host {} has no rank",
                                  std::distance(devices.begin(), none)));
  }
  if (const int most = std::ranges::max(devices); most != cluster.devices_per_host) {
    throw ConfigError(
        fmt::format("cluster: host_of_rank: {} ranks are on one host, but devices_per_host, the "
                    "most, is {}",
                    most, cluster.devices_per_host));
  }
}

void verify_speeds(const Cluster& cluster) {
  if (cluster.speed_of_host.empty()) return;
  if (cluster.speed_of_host.size() != static_cast<size_t>(cluster.hosts)) {
    throw ConfigError(fmt::format("cluster: host: {} hosts are described, but hosts = {}",
                                  cluster.speed_of_host.size(), cluster.hosts));
  }
  for (const double speed : cluster.speed_of_host) {
    if (speed >= kLeastSpeed && speed <= 1 / kLeastSpeed) continue;
    throw ConfigError(fmt::format("cluster: host.speed: expected a number from {} to {}, found {}",
                                  kLeastSpeed, 1 / kLeastSpeed, speed));
  }
}

}  // namespace

std::vector<int> ranks_by_host(const Cluster& cluster, const std::vector<int>& hosts) {
  std::vector<int> place(hosts.size());
  for (size_t k = 0; k < hosts.size(); ++k) place[static_cast<size_t>(hosts[k])] = int(k);
  std::vector<int> ranks(static_cast<size_t>(cluster.ranks()));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::ranges::stable_sort(
      ranks, {}, [&](int rank) { return place[static_cast<size_t>(cluster.host_of(rank))]; });
  return ranks;
}

Cluster numbered_by_host(const Cluster& cluster, const std::vector<int>& hosts) {
  Cluster result = cluster;
  result.host_of_rank.clear();
  for (size_t k = 0; k < hosts.size(); ++k) {
    if (!cluster.speed_of_host.empty()) result.speed_of_host[k] = cluster.speed_of(hosts[k]);
    if (cluster.host_of_rank.empty()) continue;
    result.host_of_rank.insert(result.host_of_rank.end(),
                               static_cast<size_t>(cluster.devices_of(hosts[k])), int(k));
  }
  return result;
}

std::vector<std::vector<int>> host_orders(const Cluster& cluster) {
  std::vector<int> given(static_cast<size_t>(cluster.hosts));
  std::iota(given.begin(), given.end(), 0);
  if (cluster.speed_of_host.empty()) return {given};
  std::map<std::pair<double, int>, std::vector<int>> hosts_of_kinds;
  for (const int host : given) {
    hosts_of_kinds[{cluster.speed_of(host), cluster.devices_of(host)}].push_back(host);
  }
  std::vector<size_t> line;  // kinds from the slowest on
  std::vector<std::vector<int>> kinds;
  for (auto& [kind, hosts] : hosts_of_kinds) {
    line.insert(line.end(), hosts.size(), kinds.size());
    kinds.push_back(std::move(hosts));
  }
  std::vector<std::vector<int>> orders;
  do {
    std::vector<size_t> used(kinds.size(), 0);
    std::vector<int>& order = orders.emplace_back();
    for (const size_t kind : line) order.push_back(kinds[kind][used[kind]++]);
  } while (orders.size() <= kMostHostOrders && std::ranges::next_permutation(line).found);
  if (orders.size() > kMostHostOrders) {
    const std::vector<int> rising = orders.front();
    orders = {rising, {rising.rbegin(), rising.rend()}, given};
  }
  return orders;
}

void verify(const Cluster& cluster) {
  verify_count(cluster.hosts, "hosts");
  verify_count(cluster.devices_per_host, "devices_per_host");
  verify_count(cluster.links_per_host, "inter_host.links_per_host");
  if (static_cast<int64_t>(cluster.hosts) * cluster.devices_per_host > kMaxRanks) {
    throw ConfigError(
        fmt::format("cluster: hosts * devices_per_host: {} * {} is more than {} ranks",
                    cluster.hosts, cluster.devices_per_host, kMaxRanks));
  }
  if (!std::isfinite(cluster.device_memory_bytes) || cluster.device_memory_bytes < 0) {
    throw ConfigError(fmt::format(
        "cluster: device_memory_bytes: expected a finite number of at least 0, found {}",
        cluster.device_memory_bytes));
  }
  if (!std::isfinite(cluster.price_per_device_hour) || cluster.price_per_device_hour < 0) {
    throw ConfigError(fmt::format(
        "cluster: price_per_device_hour: expected a finite number of at least 0, found {}",
        cluster.price_per_device_hour));
  }
  verify_hosts_of_ranks(cluster);
  verify_speeds(cluster);
  verify_link(cluster.intra_host, "intra_host", cluster.devices_per_host > 1);
  verify_link(cluster.inter_host, "inter_host", cluster.hosts > 1);
}

Cluster cluster_from_toml(std::string_view text, std::string_view file_name) {
  if (text.size() > kMaxFileBytes) {
    throw ConfigError(fmt::format("{}: {} bytes are too many for a cluster; at most {}", file_name,
                                  text.size(), kMaxFileBytes));
  }
  check_characters(text, file_name);
  toml::table file;
  try {
    file = toml::parse(text, file_name);
  } catch (const toml::parse_error& error) {
    const toml::source_position at = error.source().begin;
    throw ConfigError(fmt::format("{}: line {}, column {}: {}", file_name, at.line, at.column,
                                  error.description()));
  }
  const Table root(file, file_name, "");
  std::vector<std::string> keys{
      "format",     "version",   "hosts", "devices_per_host", "device_memory_bytes",
      "intra_host", "inter_host"};
  const int64_t version = check_header(root);
  if (version > 1) keys.emplace_back("price_per_device_hour");
  if (version > 2) keys.insert(keys.end(), {"host_of_rank", "host"});
  root.allow_only(keys);
  Cluster cluster;
  cluster.hosts = root.count("hosts");
  cluster.devices_per_host = root.count("devices_per_host");
  cluster.device_memory_bytes = root.number("device_memory_bytes");
  if (file.contains("price_per_device_hour")) {
    cluster.price_per_device_hour = root.number("price_per_device_hour");
  }

  if (file.contains("host_of_rank")) cluster.host_of_rank = root.indices("host_of_rank");

  if (file.contains("host")) {
    for (const toml::table* each : root.tables("host")) {
      const Table host(*each, file_name, "host.");
      host.allow_only({"speed"});
      cluster.speed_of_host.push_back(each->contains("speed") ? host.number("speed") : 1);
    }
  }

  const toml::table* intra = root.table("intra_host");
  if (intra == nullptr) throw ConfigError(fmt::format("{}: [intra_host] is missing", file_name));
  const Table intra_table(*intra, file_name, "intra_host.");
  intra_table.allow_only({"bandwidth_bytes_per_s", "latency_ns"});
  cluster.intra_host = read_link(intra_table);

  if (const toml::table* inter = root.table("inter_host")) {
    const Table inter_table(*inter, file_name, "inter_host.");
    inter_table.allow_only({"bandwidth_bytes_per_s", "latency_ns", "links_per_host"});
    cluster.inter_host = read_link(inter_table);
    if (inter->contains("links_per_host")) {
      cluster.links_per_host = inter_table.count("links_per_host");
    }
  } else if (cluster.hosts > 1) {
    throw ConfigError(
        fmt::format("{}: [inter_host] is missing, but hosts = {}", file_name, cluster.hosts));
  }
  try {
    verify(cluster);
  } catch (const ConfigError& error) {
    std::string_view why = error.what();
    if (why.starts_with("cluster: ")) why.remove_prefix(std::size("cluster: ") - 1);
    throw ConfigError(fmt::format("{}: {}", file_name, why));
  }
  return cluster;
}

std::string to_toml(const Cluster& cluster) {
  std::string text = fmt::format(
      "format = \"rannc-cluster\"\nversion = {}\nhosts = {}\ndevices_per_host = {}\n"
      "device_memory_bytes = {}\n",
      !cluster.host_of_rank.empty() || !cluster.speed_of_host.empty() ? 3
      : cluster.price_per_device_hour != 0                            ? 2
                                                                      : 1,
      cluster.hosts, cluster.devices_per_host, json::number_text(cluster.device_memory_bytes));
  if (cluster.price_per_device_hour != 0) {
    text += fmt::format("price_per_device_hour = {}\n",
                        json::number_text(cluster.price_per_device_hour));
  }
  if (!cluster.host_of_rank.empty()) {
    text += fmt::format("host_of_rank = [{}]\n", fmt::join(cluster.host_of_rank, ", "));
  }
  text += link_text("intra_host", cluster.intra_host);
  if (cluster.hosts > 1 || cluster.inter_host != Link{} || cluster.links_per_host != 1) {
    text += link_text("inter_host", cluster.inter_host);
    text += fmt::format("links_per_host = {}\n", cluster.links_per_host);
  }
  for (const double speed : cluster.speed_of_host) {
    text += fmt::format("[[host]]\nspeed = {}\n", json::number_text(speed));
  }
  return text;
}

}  // namespace rannc::cost
