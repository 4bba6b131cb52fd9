// What a program needs beside newer_functions.cpp, but no library: its start, and the way of exceptions through it
// where the unwinder is linked statically.
#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace {

using Initializer = void (*)(int, char**, char**);
using Main = int (*)(int, char**, char**);

#if __GLIBC_PREREQ(2, 35)
using FindObject = int (*)(void*, dl_find_object*);

struct LoadedObject {
  std::uintptr_t address;  // the one looked for
  std::uintptr_t begin;
  std::uintptr_t end;
  std::uintptr_t eh_frame_header;
};

// For dl_iterate_phdr(): 1, which ends it, where the address is in this object.
int look_into(dl_phdr_info* object, std::size_t, void* argument) {
  auto& wanted = *static_cast<LoadedObject*>(argument);
  LoadedObject seen{wanted.address, UINTPTR_MAX, 0, 0};
  bool is_here = false;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const auto& segment = object->dlpi_phdr[i];
    const std::uintptr_t at = object->dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_GNU_EH_FRAME) seen.eh_frame_header = at;
    if (segment.p_type != PT_LOAD) continue;
    is_here = is_here || (seen.address >= at && seen.address - at < segment.p_memsz);
    seen.begin = std::min(seen.begin, at);
    seen.end = std::max<std::uintptr_t>(seen.end, at + segment.p_memsz);
  }
  if (!is_here || seen.eh_frame_header == 0) return 0;
  wanted = seen;
  return 1;
}
#endif

}  // namespace

extern "C" {

#if __GLIBC_PREREQ(2, 35)
// 2.35, of the unwinder in GCC's archive: where exceptions find the tables of the code that they pass through. Where
// glibc has it, its own, which takes no lock.
int _dl_find_object(void* address, dl_find_object* result) noexcept {
  static const auto real = reinterpret_cast<FindObject>(::dlsym(RTLD_DEFAULT, "_dl_find_object"));
  if (real != nullptr) return real(address, result);
  LoadedObject found{reinterpret_cast<std::uintptr_t>(address), 0, 0, 0};
  if (::dl_iterate_phdr(look_into, &found) == 0) return -1;
  *result = {};
  result->dlfo_map_start = reinterpret_cast<void*>(found.begin);
  result->dlfo_map_end = reinterpret_cast<void*>(found.end);
  result->dlfo_eh_frame = reinterpret_cast<void*>(found.eh_frame_header);
  return 0;
}
#endif

// The start of a program. Since 2.34 libc itself runs the program's initializers; before, it called a function that the
// program brought along, and every later one still does where it is given one.
extern Initializer __init_array_start[] __attribute__((visibility("hidden")));
extern Initializer __init_array_end[] __attribute__((visibility("hidden")));
void _init();

static void run_initializers(int argc, char** argv, char** environment) {
  _init();
  for (Initializer* each = __init_array_start; each != __init_array_end; ++each) (*each)(argc, argv, environment);
}

int ddp_start_main(Main, int, char**, Initializer, void (*)(), void (*)(), void*);
__asm__(".symver ddp_start_main, __libc_start_main@GLIBC_2.2.5");

int __libc_start_main(Main main, int argc, char** argv, Initializer given, void (*fini)(), void (*loader_fini)(),
                      void* stack_end) {
  return ddp_start_main(main, argc, argv, given != nullptr ? given : run_initializers, fini, loader_fini, stack_end);
}

}  // extern "C"
