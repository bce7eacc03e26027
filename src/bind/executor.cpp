#include "bind/module.h"

namespace rannc::bind {

void init_executor(py::module_&) {}

}  // namespace rannc::bind
