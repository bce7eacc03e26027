#include "bind/module.h"

namespace rannc::bind {

void init_runtime(py::module_& m) { init_executor(m); }

}  // namespace rannc::bind
