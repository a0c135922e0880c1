# Lets colcon build against the ROS 2 wheels of pip; a ROS 2 installation does not need this.
#
#   colcon build --cmake-args -DCMAKE_PROJECT_INCLUDE=<this file>
#
# The wheels' exported targets name the Python and numpy header folders of the machine they were
# made on, and CMake refuses folders that do not exist. Once the project has found its packages,
# the folders of the interpreter in use are put in their place.
function(use_local_python_headers)
  get_property(targets DIRECTORY PROPERTY IMPORTED_TARGETS)
  foreach(target ${targets})
    if(target MATCHES "__rosidl_generator_py$")
      set_target_properties(${target} PROPERTIES
        INTERFACE_INCLUDE_DIRECTORIES "${Python3_INCLUDE_DIRS};${Python3_NumPy_INCLUDE_DIRS}")
    endif()
  endforeach()
endfunction()

cmake_language(DEFER CALL use_local_python_headers)
