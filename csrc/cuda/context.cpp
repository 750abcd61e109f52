#include <dlfcn.h>

#include "cuda/launch.h"

namespace memload::cuda {

// The runtime library cannot tell without making one. The driver's library can, and is loaded by whoever uses a GPU.
bool has_context(int device) noexcept {
  using GetState = int (*)(int device, unsigned int* flags, int* active);
  static const auto get_state = []() -> GetState {
    void* const driver = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    return driver == nullptr ? nullptr : reinterpret_cast<GetState>(::dlsym(driver, "cuDevicePrimaryCtxGetState"));
  }();
  unsigned int flags = 0;
  int active = 0;
  return get_state == nullptr || (get_state(device, &flags, &active) == 0 && active != 0);
}

}  // namespace memload::cuda
