#include "bind/module.h"

namespace rannc::bind {

void init_ir(py::module_&) {}

}  // namespace rannc::bind
