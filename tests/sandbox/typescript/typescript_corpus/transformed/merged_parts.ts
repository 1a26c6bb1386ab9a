// = [1, 3, 2, 5, ["x"]]
namespace A { export const one = 1; export namespace In { export const x = 2 } }
namespace A { export const three = A.one + 2; const two = 4; export const five = two }
namespace A.In { export const y = x_() ; function x_() { return ["x"] } }
class C { static a = 1 }
namespace C { export const b = a_(); function a_() { return 5 } }
;[A.one, A.three, A.In.x, C.b, A.In.y]
