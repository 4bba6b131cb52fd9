# The parts of Python's wheel, which python/CMakeLists.txt installs: the target wheel_parts builds them, and the
# component `wheel` has them as the wheel does. `cmake --install` without a component leaves them out.
#
#   cmake --build --preset release --target wheel_parts
#   pip wheel --no-deps python/ -C cmake.define.DDP_PREBUILT=$PWD/build/release
if(NOT TARGET ddp_for_python)
  return()  # only for glibc on x86-64 (cmake/old_glibc.cmake)
endif()
if(DDP_BUILD_TESTS)
  set(all ALL)  # one of them makes a wheel
endif()
add_custom_target(wheel_parts ${all} DEPENDS ddp_for_python ddprun ddp-rendezvous ddprun_man_page
                  ddp_rendezvous_man_page ddprun_completions)
install(TARGETS ddp_for_python LIBRARY DESTINATION lib COMPONENT wheel EXCLUDE_FROM_ALL)
install(TARGETS ddprun ddp-rendezvous RUNTIME DESTINATION bin COMPONENT wheel EXCLUDE_FROM_ALL)
install(FILES LICENSE DESTINATION share/doc/ddprun COMPONENT wheel EXCLUDE_FROM_ALL)
install(FILES ${PROJECT_BINARY_DIR}/launcher/ddprun.1 ${PROJECT_BINARY_DIR}/rendezvous/ddp-rendezvous.1
        DESTINATION share/man/man1 COMPONENT wheel EXCLUDE_FROM_ALL)
install(FILES ${PROJECT_BINARY_DIR}/launcher/completion.bash RENAME ddprun
        DESTINATION share/bash-completion/completions COMPONENT wheel EXCLUDE_FROM_ALL)
install(FILES ${PROJECT_BINARY_DIR}/launcher/completion.zsh RENAME _ddprun
        DESTINATION share/zsh/site-functions COMPONENT wheel EXCLUDE_FROM_ALL)
install(FILES ${PROJECT_BINARY_DIR}/launcher/completion.fish RENAME ddprun.fish
        DESTINATION share/fish/vendor_completions.d COMPONENT wheel EXCLUDE_FROM_ALL)
