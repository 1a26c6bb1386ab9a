// ! UNSUPPORTED_FEATURE 2
import whole, { one, type Two as two } from "somewhere" with { type: "json" }
import * as all from "elsewhere"
import required = require("third")
import "fourth"
export { one, two as three }
export * as four from "fifth"
export const five = 5
export default whole
const late = await import("sixth")
