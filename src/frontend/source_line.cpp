#include "frontend/source_line.h"

#include <Python.h>

#include <string_view>

namespace rannc::frontend {
namespace {

ir::SourceLine line_of(PyFrameObject* frame, std::string_view file) {
  return {std::string(file), PyFrame_GetLineNumber(frame)};
}

}  // namespace

ir::SourceLine current_line(const std::string& torch_path, const std::string& own_path) {
  const PyGILState_STATE gil = PyGILState_Ensure();
  ir::SourceLine fallback;
  ir::SourceLine found;
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  while (frame != nullptr && found.line == 0) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    const char* text = PyUnicode_AsUTF8(code->co_filename);
    const std::string_view file = text != nullptr ? text : "";
    // Frozen modules and generated code have no file to show; a trace starts in threading.py.
    if (!file.starts_with(own_path) && !file.starts_with("<") && !file.ends_with("/threading.py")) {
      if (!file.starts_with(torch_path)) {
        found = line_of(frame, file);
      } else if (fallback.line == 0) {
        fallback = line_of(frame, file);
      }
    }
    Py_DECREF(code);
    PyFrameObject* back = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
  Py_XDECREF(frame);
  PyGILState_Release(gil);
  return found.line != 0 ? found : fallback;
}

}  // namespace rannc::frontend
