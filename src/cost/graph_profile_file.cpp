#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "rannc/cost/graph_profile.h"
#include "rannc/util/json.h"

// The file `rannc-graph-profile`; docs/planner-files.md, section 1.
namespace rannc::cost {
namespace {

using json::Place;

constexpr int64_t kMaxRows = int64_t{1} << 40;

Size read_size(Place place) {
  Size size;
  if (const auto found = place.find("bytes_per_row")) size.bytes_per_row = found->number();
  if (const auto found = place.find("fixed_bytes")) size.fixed_bytes = found->number();
  return size;
}

std::vector<double> read_numbers(Place place, size_t count) {
  std::vector<double> numbers;
  for (Place element : place.elements()) numbers.push_back(element.number());
  if (numbers.size() != count) {
    place.fail(fmt::format("{} numbers, but 'rows' has {}", numbers.size(), count));
  }
  return numbers;
}

/// What a name in a node's `inputs` may refer to.
struct Producer {
  bool is_input;
  uint32_t index;
};

class Reader {
 public:
  explicit Reader(Place root) : root_(root) {}

  GraphProfile read() {
    profile_.version = static_cast<int>(root_.expect_format("rannc-graph-profile", 2));
    std::vector<std::string_view> keys{"format", "version", "name",   "dtype",
                                       "rows",   "inputs",  "params", "nodes"};
    if (is_second()) keys.emplace_back("saved");
    root_.allow_only(keys);
    if (const auto name = root_.find("name")) profile_.name = name->string();
    if (const auto dtype = root_.find("dtype")) profile_.dtype = dtype->string();
    for (Place row : root_.at("rows").elements()) profile_.rows.push_back(row.integer(1, kMaxRows));
    if (const auto inputs = root_.find("inputs")) {
      for (Place place : inputs->elements()) read_input(place);
    }
    if (const auto params = root_.find("params")) {
      for (Place place : params->elements()) read_param(place);
    }
    for (Place place : root_.at("nodes").elements()) read_node(place);
    if (const auto saved = root_.find("saved")) {
      for (Place place : saved->elements()) read_storage(place);
    }
    return std::move(profile_);
  }

 private:
  [[nodiscard]] bool is_second() const { return profile_.version == 2; }

  void read_input(Place place) {
    place.allow_only({"name", "bytes_per_row", "fixed_bytes"});
    const std::string& name = place.at("name").string();
    define(place.at("name"), name, {true, static_cast<uint32_t>(profile_.inputs.size())});
    profile_.inputs.push_back({name, read_size(place)});
  }

  void read_param(Place place) {
    place.allow_only({"id", "bytes", "trainable", "optimizer_bytes"});
    ProfileParam param{.id = place.at("id").string(), .bytes = place.at("bytes").number()};
    if (const auto trainable = place.find("trainable")) param.trainable = trainable->boolean();
    if (const auto bytes = place.find("optimizer_bytes")) param.optimizer_bytes = bytes->number();
    const auto index = static_cast<uint32_t>(profile_.params.size());
    if (!params_.emplace(param.id, index).second) {
      place.at("id").fail(fmt::format("parameter '{}' occurs twice", param.id));
    }
    profile_.params.push_back(std::move(param));
  }

  void read_node(Place place) {
    std::vector<std::string_view> keys{
        "name",       "op",          "inputs",      "params",          "outputs",
        "forward_ns", "backward_ns", "saved_bytes", "workspace_bytes", "group"};
    if (is_second()) {
      keys.insert(keys.end(),
                  {"adds_in_place", "module", "source", "forward_host_ns", "backward_host_ns"});
    }
    place.allow_only(keys);
    ProfileNode node;
    node.name = place.at("name").string();
    if (const auto op = place.find("op")) node.op = op->string();
    if (const auto inputs = place.find("inputs")) {
      for (Place use : inputs->elements()) node.inputs.push_back(read_use(use));
    }
    if (const auto params = place.find("params")) {
      for (Place param : params->elements()) node.params.push_back(read_param_use(param));
    }
    if (const auto outputs = place.find("outputs")) {
      for (Place output : outputs->elements()) node.outputs.push_back(read_output(output));
    }
    const size_t count = profile_.rows.size();
    node.forward_ns = read_numbers(place.at("forward_ns"), count);
    node.backward_ns = read_numbers(place.at("backward_ns"), count);
    const auto saved = is_second() ? place.find("saved_bytes") : place.at("saved_bytes");
    node.saved_bytes = saved ? read_numbers(*saved, count) : std::vector<double>(count);
    const auto workspace = place.find("workspace_bytes");
    node.workspace_bytes = workspace ? read_numbers(*workspace, count) : std::vector<double>(count);
    if (const auto group = place.find("group")) {
      node.group = group->string();
      if (node.group.empty()) group->fail("the name of a group is empty");
    }
    if (const auto found = place.find("adds_in_place")) node.adds_in_place = found->boolean();
    if (const auto found = place.find("module")) node.module = found->string();
    if (const auto found = place.find("source")) node.source = found->string();
    if (const auto found = place.find("forward_host_ns")) {
      node.forward_host_ns = read_numbers(*found, count);
    }
    if (const auto found = place.find("backward_host_ns")) {
      node.backward_host_ns = read_numbers(*found, count);
    }
    // Defined after its inputs are read, so that a node cannot use itself.
    define(place.at("name"), node.name, {false, static_cast<uint32_t>(profile_.nodes.size())});
    profile_.nodes.push_back(std::move(node));
  }

  void read_storage(Place place) {
    place.allow_only({"nodes", "bytes"});
    SavedStorage storage;
    for (Place name : place.at("nodes").elements()) {
      const auto found = producers_.find(name.string());
      if (found == producers_.end() || found->second.is_input) {
        name.fail(fmt::format("'{}' is no node", name.string()));
      }
      storage.nodes.push_back(found->second.index);
    }
    storage.bytes = read_numbers(place.at("bytes"), profile_.rows.size());
    profile_.saved.push_back(std::move(storage));
  }

  static ProfileOutput read_output(Place place) {
    place.allow_only({"bytes_per_row", "fixed_bytes", "grad"});
    ProfileOutput output{.size = read_size(place)};
    if (const auto grad = place.find("grad")) output.grad = grad->boolean();
    return output;
  }

  uint32_t read_param_use(Place place) const {
    const auto found = params_.find(place.string());
    if (found == params_.end()) {
      place.fail(fmt::format("parameter '{}' is not in 'params'", place.string()));
    }
    return found->second;
  }

  ProfileUse read_use(Place place) const {
    const std::string& text = place.string();
    const size_t colon = text.rfind(':');
    const std::string name = text.substr(0, colon);
    const auto found = producers_.find(name);
    if (found == producers_.end()) {
      place.fail(is_later_node(name)
                     ? fmt::format("'{}' is not an earlier node: nodes must be in a topological "
                                   "order, without cycles",
                                   name)
                     : fmt::format("'{}' is no graph input and no node", name));
    }
    const size_t outputs =
        found->second.is_input ? 1 : profile_.nodes[found->second.index].outputs.size();
    const uint32_t output = colon == std::string::npos ? 0 : output_number(place, text, colon + 1);
    if (output >= outputs) {
      place.fail(fmt::format("'{}' has {} outputs; '{}' is not among them", name, outputs, text));
    }
    return {found->second.is_input, found->second.index, output};
  }

  [[nodiscard]] bool is_later_node(const std::string& name) const {
    const std::vector<Place> nodes = root_.at("nodes").elements();
    return std::ranges::any_of(nodes, [&](const Place& node) {
      const auto found = node.is_object() ? node.find("name") : std::nullopt;
      return found && found->is_string() && found->string() == name;
    });
  }

  static uint32_t output_number(Place place, const std::string& text, size_t begin) {
    const std::string digits = text.substr(begin);
    if (digits.empty() || digits.size() > 6 ||
        digits.find_first_not_of("0123456789") != std::string::npos) {
      place.fail(fmt::format("expected 'node' or 'node:number', found '{}'", text));
    }
    return static_cast<uint32_t>(std::stoul(digits));
  }

  void define(Place place, const std::string& name, Producer producer) {
    if (name.empty()) place.fail("the name is empty");
    if (name.find(':') != std::string::npos) {
      place.fail(fmt::format("the name '{}' contains ':'", name));
    }
    if (!producers_.emplace(name, producer).second) {
      place.fail(fmt::format("the name '{}' occurs twice", name));
    }
  }

  Place root_;
  GraphProfile profile_;
  std::unordered_map<std::string, Producer> producers_;
  std::unordered_map<std::string, uint32_t> params_;
};

std::string numbers(const std::vector<double>& values) {
  std::string text = "[";
  for (double value : values) {
    if (text.size() > 1) text += ", ";
    text += json::number_text(value);
  }
  return text + "]";
}

std::string size_keys(const Size& size) {
  std::string text;
  if (size.bytes_per_row != 0 || size.fixed_bytes == 0) {
    text += fmt::format("\"bytes_per_row\": {}", json::number_text(size.bytes_per_row));
  }
  if (size.fixed_bytes != 0) {
    if (!text.empty()) text += ", ";
    text += fmt::format("\"fixed_bytes\": {}", json::number_text(size.fixed_bytes));
  }
  return text;
}

std::string node_text(const GraphProfile& profile, const ProfileNode& node) {
  std::string inputs, params, outputs;
  for (const ProfileUse& use : node.inputs) {
    const std::string& producer =
        use.is_input ? profile.inputs[use.node].name : profile.nodes[use.node].name;
    if (!inputs.empty()) inputs += ", ";
    inputs += json::quote(use.output == 0 ? producer : fmt::format("{}:{}", producer, use.output));
  }
  for (uint32_t param : node.params) {
    if (!params.empty()) params += ", ";
    params += json::quote(profile.params[param].id);
  }
  for (const ProfileOutput& output : node.outputs) {
    if (!outputs.empty()) outputs += ", ";
    outputs +=
        fmt::format("{{{}{}}}", size_keys(output.size), output.grad ? "" : ", \"grad\": false");
  }
  std::string place;
  if (profile.version > 1 && !node.module.empty())
    place += ", \"module\": " + json::quote(node.module);
  if (profile.version > 1 && !node.source.empty())
    place += ", \"source\": " + json::quote(node.source);
  if (profile.version > 1 && node.adds_in_place) place += ", \"adds_in_place\": true";
  std::string host;
  if (!node.forward_host_ns.empty())
    host += ", \"forward_host_ns\": " + numbers(node.forward_host_ns);
  if (!node.backward_host_ns.empty())
    host += ", \"backward_host_ns\": " + numbers(node.backward_host_ns);
  return fmt::format(
      "  {{\"name\": {}, \"op\": {}{}, \"inputs\": [{}], \"params\": [{}], \"outputs\": [{}],\n"
      "   \"forward_ns\": {}, \"backward_ns\": {}, \"saved_bytes\": {}, \"workspace_bytes\": "
      "{}{}{}}}",
      json::quote(node.name), json::quote(node.op), place, inputs, params, outputs,
      numbers(node.forward_ns), numbers(node.backward_ns), numbers(node.saved_bytes),
      numbers(node.workspace_bytes), host,
      node.group.empty() ? "" : ", \"group\": " + json::quote(node.group));
}

std::string param_text(const ProfileParam& param) {
  std::string text = fmt::format("  {{\"id\": {}, \"bytes\": {}", json::quote(param.id),
                                 json::number_text(param.bytes));
  if (!param.trainable) text += ", \"trainable\": false";
  if (param.optimizer_bytes >= 0) {
    text += fmt::format(", \"optimizer_bytes\": {}", json::number_text(param.optimizer_bytes));
  }
  return text + "}";
}

std::string storage_text(const GraphProfile& profile, const SavedStorage& storage) {
  std::string nodes;
  for (uint32_t node : storage.nodes) {
    if (!nodes.empty()) nodes += ", ";
    nodes += json::quote(profile.nodes[node].name);
  }
  return fmt::format("  {{\"nodes\": [{}], \"bytes\": {}}}", nodes, numbers(storage.bytes));
}

template <class Things, class Print>
std::string lines(const Things& things, Print print) {
  std::string text;
  for (const auto& thing : things) text += (text.empty() ? "\n" : ",\n") + print(thing);
  return text;
}

}  // namespace

GraphProfile graph_profile_from_json(std::string_view text) {
  const json::Document document(text, "graph profile");
  GraphProfile profile = Reader(document.root()).read();
  verify(profile);
  return profile;
}

std::string to_json(const GraphProfile& profile) {
  const std::vector<double> rows(profile.rows.begin(), profile.rows.end());
  std::string saved;
  if (profile.version > 1) {
    saved =
        fmt::format(",\n \"saved\": [{}]", lines(profile.saved, [&](const SavedStorage& storage) {
                      return storage_text(profile, storage);
                    }));
  }
  return fmt::format(
      "{{\"format\": \"rannc-graph-profile\", \"version\": {}, \"name\": {}, \"dtype\": {}, "
      "\"rows\": {},\n \"inputs\": [{}],\n \"params\": [{}],\n \"nodes\": [{}]{}}}\n",
      profile.version, json::quote(profile.name), json::quote(profile.dtype), numbers(rows),
      lines(profile.inputs,
            [](const ProfileInput& input) {
              return fmt::format("  {{\"name\": {}, {}}}", json::quote(input.name),
                                 size_keys(input.size));
            }),
      lines(profile.params, param_text),
      lines(profile.nodes, [&](const ProfileNode& node) { return node_text(profile, node); }),
      saved);
}

}  // namespace rannc::cost
