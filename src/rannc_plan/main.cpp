#include <exception>
#include <iostream>

#include "rannc_plan/run.h"

int main(int count, char** words) {
  try {
    return rannc::rannc_plan::run({words, static_cast<size_t>(count)}, std::cout, std::cerr);
  } catch (const std::exception& error) {  // a bug of ours: those of the input are dealt with
    std::cerr << "rannc-plan: " << error.what() << '\n';
    return 1;
  }
}
