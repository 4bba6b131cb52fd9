// Whether this build is a sanitizer's, where long series are shorter: an error of memory or a data race shows in a few.
#pragma once

namespace ddp::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kIsSanitized = true;
#else
constexpr bool kIsSanitized = false;
#endif

}  // namespace ddp::test
