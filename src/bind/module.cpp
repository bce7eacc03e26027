#include "bind/module.h"

#include <string>

namespace py = pybind11;
using namespace rannc::bind;

namespace {

/// A value in a few words: long texts and lists by their size.
std::string in_words(const py::object& value) {
  constexpr size_t kMostItems = 8, kMostCharacters = 60;
  const bool is_list = py::isinstance<py::list>(value) || py::isinstance<py::tuple>(value);
  if (is_list && py::len(value) > kMostItems) {
    return "[" + std::to_string(py::len(value)) + " items]";
  }
  const std::string text = py::repr(value);
  if (text.size() <= kMostCharacters || !py::isinstance<py::str>(value)) return text;
  return "'...' of " + std::to_string(py::len(value)) + " characters";
}

/// "Prediction(rows=2, forward_ns=600, ...)".
std::string fields_in_words(const py::object& self) {
  const py::object type = py::type::of(self);
  const py::object property = py::module_::import("builtins").attr("property");
  std::string text;
  for (const auto& item : py::dict(type.attr("__dict__"))) {
    if (!py::isinstance(item.second, property)) continue;
    const std::string name = py::str(item.first);
    text += (text.empty() ? "" : ", ") + name + "=" + in_words(self.attr(name.c_str()));
  }
  return std::string(py::str(type.attr("__name__"))) + "(" + text + ")";
}

/// Data without words of their own say their fields when Python prints them.
void say_fields(const py::module_& submodule) {
  for (const auto& item : py::dict(submodule.attr("__dict__"))) {
    if (!py::isinstance<py::type>(item.second)) continue;
    const auto type = py::reinterpret_borrow<py::object>(item.second);
    if (py::dict(type.attr("__dict__")).contains("__repr__")) continue;
    type.attr("__repr__") = py::cpp_function(fields_in_words, py::is_method(type));
  }
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "The C++ core of RaNNC; use the package pyrannc instead.";
  m.attr("torch_version") = RANNC_TORCH_VERSION;
  const auto add = [&](const char* name, void (*init)(py::module_&)) {
    py::module_ submodule = m.def_submodule(name);
    init(submodule);
    return submodule;
  };
  add("util", init_util);
  say_fields(add("ir", init_ir));
  say_fields(add("cost", init_cost));
  say_fields(add("plan", init_plan));
  say_fields(add("predict", init_predict));
  say_fields(add("partition", init_partition));
  add("comm", init_comm);
  add("frontend", init_frontend);
  add("profile", init_profile);
  add("runtime", init_runtime);
}
