#include "rannc_plan/run.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <new>

#include "rannc/util/error.h"
#include "rannc_plan/commands.h"

namespace rannc::rannc_plan {
namespace {

bool continues(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U; }

/// Bytes of the UTF-8 character at `at`; 0 when there is none.
size_t character_bytes(std::string_view text, size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  const size_t count = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  if (count == 0 || lead > 0xF4 || at + count > text.size()) return 0;
  for (size_t i = 1; i < count; ++i) {
    if (!continues(text[at + i])) return 0;
  }
  return count;
}

/// One line of UTF-8, without control characters and of bearable length, whatever a file holds.
std::string one_line(std::string_view text) {
  constexpr size_t kMost = 2000;
  std::string line;
  for (size_t at = 0; at < text.size();) {
    const size_t count = character_bytes(text, at);
    const auto code = static_cast<unsigned char>(text[at]);
    if (code == '\n' || code == ' ') {
      if (!line.ends_with(' ')) line += ' ';
    } else if (count == 0 || code < 0x20 || code == 0x7F) {
      line += '?';
    } else {
      line += text.substr(at, count);
    }
    at += std::max<size_t>(count, 1);
  }
  while (line.ends_with(' ')) line.pop_back();
  if (line.size() <= kMost) return line;
  // The beginning says where, the end says why. No character is cut in two.
  size_t head = kMost / 2, tail = line.size() - kMost / 2;
  while (continues(line[head])) --head;
  while (tail < line.size() && continues(line[tail])) ++tail;
  return line.substr(0, head) + "..." + line.substr(tail);
}

/// Like CLI::Range, in words that name what was expected.
CLI::Validator whole_number(int64_t least, int64_t most) {
  const auto check = [=](const std::string& text) {
    int64_t value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error == std::errc() && stop == end && value >= least && value <= most) {
      return std::string();
    }
    return fmt::format("expected a whole number from {} to {}, found '{}'", least, most, text);
  };
  return {check, fmt::format("{} to {}", least, most)};
}

CLI::Validator seconds() {
  const auto check = [](const std::string& text) {
    double value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    const bool fine = error == std::errc() && stop == end && std::isfinite(value) && value > 0;
    return fine ? std::string()
                : fmt::format("expected a number of seconds above 0, found '{}'", text);
  };
  return {check, "above 0"};
}

/// What was wrong with the options, and the command that lists them. A required option that is
/// missing is often there, but misspelt.
std::string wrong_options(const CLI::App& app, const std::string& name,
                          const CLI::ParseError& error) {
  std::string why = error.what();
  std::string command = name;
  for (const CLI::App* chosen : app.get_subcommands()) command += " " + chosen->get_name();
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::RequiredError)) {
    for (const std::string& word : app.remaining(/*recurse=*/true)) {
      if (word.starts_with("--")) why += fmt::format("; there is no option '{}'", word);
    }
  }
  return fmt::format("{} ({} --help lists the options)", why, command);
}

void add_inputs(CLI::App& command, std::string& graph, std::string& cluster, std::string& request,
                std::optional<int64_t>& global_batch) {
  command.add_option("--graph", graph, "rannc-graph-profile, JSON")->required();
  command.add_option("--cluster", cluster, "rannc-cluster, TOML")->required();
  CLI::Option* file = command.add_option("--request", request, "rannc-plan-request, JSON");
  command.add_option("--global-batch", global_batch, "rows, for the default request")
      ->check(whole_number(1, int64_t{1} << 40))
      ->excludes(file);
}

/// The commands with their options; `chosen` gets what to run.
class CommandLine {
 public:
  explicit CommandLine(const std::string& name)
      : app_("Plans how to train a model on many devices: docs/planner.md", name) {
    app_.require_subcommand(1);
    add_plan();
    add_evaluate();
    add_show();
    add_explain();
  }

  CLI::App& app() { return app_; }

  int run(std::ostream& out, std::ostream& err) const {
    if (app_.got_subcommand("plan")) return plan_command(plan_, out, err);
    if (app_.got_subcommand("evaluate")) return evaluate_command(evaluate_, out);
    if (app_.got_subcommand("show")) return show_command(show_, out);
    return explain_command(explain_, out);
  }

 private:
  void add_plan() {
    CLI::App* command = app_.add_subcommand("plan", "Find the fastest plan that fits");
    add_inputs(*command, plan_.graph, plan_.cluster, plan_.request, plan_.global_batch);
    command->add_option("-o,--output", plan_.output, "where to write the plan, JSON");
    command
        ->add_option("--time-limit", plan_.time_limit_s,
                     "seconds; then, or at Ctrl-C, the best plan so far is the answer")
        ->check(seconds());
    command->add_option("--threads", plan_.threads, "default: one for each core")
        ->check(whole_number(1, 1024));
    command->add_option("--pin", plan_.pins, "MODULE=STAGE: a module's stage, a number or 'last'")
        ->allow_extra_args(false);
    command->add_option("--whole", plan_.whole, "a module that one stage must hold")
        ->allow_extra_args(false);
    command->add_flag("--json", plan_.json, "print the plan's file instead of a table");
    command->add_flag("--progress", plan_.progress,
                      "say on stderr how far the search is, in lines for another program");
  }

  void add_evaluate() {
    CLI::App* command =
        app_.add_subcommand("evaluate", "Time and memory of any plan, and what is wrong with it");
    add_inputs(*command, evaluate_.graph, evaluate_.cluster, evaluate_.request,
               evaluate_.global_batch);
    command->add_option("--plan", evaluate_.plan, "rannc-plan, JSON")->required();
    command->add_flag("--json", evaluate_.json, "print JSON instead of a table");
  }

  void add_show() {
    CLI::App* command = app_.add_subcommand("show", "A plan as tables for people");
    command->add_option("plan", show_.plan, "rannc-plan, JSON")->required();
    command->add_option("--graph", show_.graph, "rannc-graph-profile that it must be a plan of");
    command
        ->add_option("--global-batch", show_.global_batch,
                     "rows, where the plan does not say how many it is for")
        ->check(whole_number(1, int64_t{1} << 40));
    add_width(*command, show_.width);
    command->add_flag("--names", show_.names, "also the names of all operators of each stage");
    command->add_flag("--timeline", show_.timeline, "when each stage computes what, as a picture");
  }

  void add_explain() {
    CLI::App* command =
        app_.add_subcommand("explain", "Which stage holds a module, and what its borders cost");
    command->add_option("plan", explain_.plan, "rannc-plan, JSON")->required();
    command->add_option("module", explain_.module, "a module's path, or a node's name")->required();
    add_width(*command, explain_.width);
  }

  static void add_width(CLI::App& command, std::optional<size_t>& width) {
    command.add_option("--width", width, "columns; default: the terminal's")
        ->check(whole_number(40, 10000));
  }

  CLI::App app_;
  PlanArguments plan_;
  EvaluateArguments evaluate_;
  ShowArguments show_;
  ExplainArguments explain_;
};

}  // namespace

int run(std::span<const char* const> words, std::ostream& out, std::ostream& err) {
  std::string name = words.empty() ? "rannc-plan" : words[0];
  name = name.substr(name.rfind('/') + 1);
  const auto bad_input = [&](std::string_view why) {
    err << name << ": " << one_line(why) << '\n';
    return kBadInput;
  };
  CommandLine line(name);
  try {
    line.app().parse(static_cast<int>(words.size()), words.data());
  } catch (const CLI::CallForHelp& help) {
    return line.app().exit(help, out, err);
  } catch (const CLI::ParseError& error) {
    return bad_input(wrong_options(line.app(), name, error));
  }
  try {
    return line.run(out, err);
  } catch (const Error& error) {
    return bad_input(error.what());
  } catch (const std::bad_alloc&) {
    return bad_input("the input needs more memory than there is");
  }
}

}  // namespace rannc::rannc_plan
